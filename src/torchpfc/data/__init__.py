"""Data sets as tensors: reading them, and downloading them."""

from torchpfc.data.download import download_images
from torchpfc.data.formats import DataError
from torchpfc.data.images import IMAGE_SETS, ImageData, Images, cache_folder, load_images

__all__ = ["IMAGE_SETS", "DataError", "ImageData", "Images", "cache_folder", "download_images", "load_images"]
