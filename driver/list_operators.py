"""``list-operators``: the coverage table, by XlaBuilder names."""

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.options import LEVELS


def list_operators_command(session: Session) -> int:
    """Body of ``list-operators``: one name a line; details with ``--verbose``."""
    from neuronx_cc.ir.operators import listing

    parsed = session.parsed
    assert parsed is not None
    # neuron-cc has no --release
    release = parsed.text("release") if "release" in parsed.values else "latest"
    print("\n".join(listing(release, parsed.integer("verbose") <= LEVELS["info"])))
    return 0
