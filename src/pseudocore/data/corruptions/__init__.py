"""Corruptions of images in the style of CIFAR-10-C."""
