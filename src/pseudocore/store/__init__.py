"""What is kept on disk. Nothing here unpickles, and a file is written whole or not at all."""
