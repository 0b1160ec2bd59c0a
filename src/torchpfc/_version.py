"""The version of the package: the one place it is written, so that an uninstalled copy knows it too."""

__version__ = "0.1.0"
