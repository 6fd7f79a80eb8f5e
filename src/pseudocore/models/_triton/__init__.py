"""Kernels for GPUs, each one function of tensors; they need triton, which comes with torch's CUDA
builds, and load when first used.
"""
