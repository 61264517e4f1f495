"""``list-operators``: the coverage table, by XlaBuilder names."""

import json

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.options import LEVELS


def list_operators_command(session: Session) -> int:
    """Body of ``list-operators``: one name a line; details with ``--verbose`` and ``--json``."""
    from neuronx_cc.ir.operators import facts, listing

    parsed = session.parsed
    assert parsed is not None
    # neuron-cc has no --release
    release = parsed.text("release") if "release" in parsed.values else "latest"
    if session.json:
        print(json.dumps({"release": release, "operators": facts(release)}, indent=1))
        return 0
    print("\n".join(listing(release, parsed.integer("verbose") <= LEVELS["info"])))
    return 0
