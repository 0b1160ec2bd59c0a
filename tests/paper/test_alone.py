"""An experiment is found without those of other modules."""

import json
import subprocess
import sys

ALONE = """
import json, sys

def fresh():
    for name in [name for name in sys.modules if name.startswith("torchpfc.paper")]:
        del sys.modules[name]
    from torchpfc.paper import registry
    return registry

found = {}
for name in fresh()._MODULES:
    registry = fresh()
    registry.find_experiment(name)
    found[name] = [registry._MODULES[name], sorted(registry._REGISTRY)]
print(json.dumps(found))
"""


def test_importing_one_experiment_registers_no_other_module_s() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"mlp-image", "split-mnist", "unlearning", "sequential-mnist"} <= found.keys()
    for module, registered in found.values():
        assert registered == sorted(name for name, (own, _) in found.items() if own == module)
