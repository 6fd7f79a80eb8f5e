"""What is kept on disk: artifacts, run folders and exports. Nothing here unpickles, and every write
is whole or not at all.
"""
