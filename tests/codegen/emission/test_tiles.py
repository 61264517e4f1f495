"""Which memory tiles take that others gave back."""

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
