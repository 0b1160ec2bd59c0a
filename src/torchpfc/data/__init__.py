"""Data sets as tensors: reading them, downloading them, and orders to learn them in."""

from torchpfc.data.download import download_images, download_songs
from torchpfc.data.formats import DataError
from torchpfc.data.images import IMAGE_SETS, ImageData, Images, cache_folder, load_images
from torchpfc.data.streams import ClassTask, Stream, class_tasks, corrupt, fixed_shuffle, label_ordered

__all__ = [
    "IMAGE_SETS",
    "ClassTask",
    "DataError",
    "ImageData",
    "Images",
    "Stream",
    "cache_folder",
    "class_tasks",
    "corrupt",
    "download_images",
    "download_songs",
    "fixed_shuffle",
    "label_ordered",
    "load_images",
]
