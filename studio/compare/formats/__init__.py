"""One module a format: a file or folder as logs of scored tries."""
