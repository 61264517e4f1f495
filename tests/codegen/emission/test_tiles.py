"""Which memory tiles take that others gave back."""

import pytest

from neuronx_cc.codegen.emission.builder import Block, Builder
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.ir.targets import find_machine


def pool_of(*names: str, buffers: int = 1) -> tuple[TilePool, dict[str, Block]]:
    """A pool with equal tiles, all lent."""
    pool = TilePool(Builder(find_machine("trn1")), "tile", buffers)
    return pool, {name: pool.tile([64], "f32", 128) for name in names}


def test_what_was_given_back_first_is_taken_first() -> None:
    pool, tiles = pool_of("x", "y")
    for name in ("y", "x"):
        pool.give_back(tiles[name])
    taken = [pool.tile([64], "f32", 128).alloc for _ in range(2)]
    assert taken == [tiles["y"].alloc, tiles["x"].alloc]


def test_what_is_stored_is_taken_last() -> None:
    pool, tiles = pool_of("out", "x", "y")
    pool.give_back(tiles["out"], stored=True)
    for name in ("x", "y"):
        pool.give_back(tiles[name])
    taken = [pool.tile([64], "f32", 128).alloc for _ in range(3)]
    assert taken == [tiles[name].alloc for name in ("x", "y", "out")]


def test_another_buffer_of_what_is_stored_is_free() -> None:
    pool, tiles = pool_of("out", "x", buffers=2)
    pool.give_back(tiles["x"])
    pool.give_back(tiles["out"], stored=True)
    first, second = (pool.tile([64], "f32", 128) for _ in range(2))
    assert {first.alloc, second.alloc} == {tiles["out"].alloc, tiles["x"].alloc}
    assert {first.offset.const, second.offset.const}.isdisjoint(tile.offset.const for tile in tiles.values())


def test_a_smaller_tile_takes_a_larger_one_only_where_room_is_short() -> None:
    pool, tiles = pool_of("x")
    pool.give_back(tiles["x"])
    assert pool.tile([16], "f32", 128).alloc is not tiles["x"].alloc


def test_the_order_holds_across_loops() -> None:
    """In a loop the next buffer of a ring of two is another one than in straight-line code."""
    pool, tiles = pool_of("out", "x", "y", "z", buffers=2)

    def take() -> None:
        rings = {id(ring.alloc): ring for ring in pool._rings}
        lent = {id(tile.alloc) for name, tile in tiles.items() if name in out}
        first = min((ring for at, ring in rings.items() if at not in lent), key=pool._left_at)
        assert pool.tile([64], "f32", 128).alloc is first.alloc
        out.update(name for name, tile in tiles.items() if tile.alloc is first.alloc)

    out = {"y", "z"}
    pool.give_back(tiles["out"], stored=True)
    pool.give_back(tiles["x"])
    with pool.builder.loop(4):
        for name in ("y", "z"):
            pool.give_back(tiles[name])
            out.discard(name)
        take()
    for _ in range(3):
        take()


def test_taking_tiles_is_linear_in_those_that_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of thousands of operands asked every idle tile for its place, for every tile that it took."""
    asked = []
    pool, tiles = pool_of(*map(str, range(500)))
    left_at = TilePool._left_at
    monkeypatch.setattr(TilePool, "_left_at", lambda *given: asked.append(0) or left_at(*given))
    for tile in tiles.values():
        pool.give_back(tile)
    taken = [pool.tile([64], "f32", 128).alloc for _ in tiles]
    assert taken == [tile.alloc for tile in tiles.values()]
    assert len(asked) <= 2 * len(tiles)
