from importlib.util import find_spec

NEEDED = ("sklearn", "safetensors", "requests", "filelock")

# Fabric is a package of its own, or a part of the larger one.
if not (find_spec("lightning_fabric") or find_spec("lightning")) or not all(map(find_spec, NEEDED)):
    collect_ignore_glob = ["*.py"]
