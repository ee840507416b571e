"""Prefix caches: per replica an LRU list of block keys with an open-addressing table, all in flat arrays.

A prompt is a list of block keys (Mooncake's `hash_ids`); what is cached of it is its longest run of leading
blocks that are present. On insertion the last block is touched first, so that a prompt loses its tail before
its head. Keys of superposed trace copies are kept apart by `copy`.
"""

import numpy as np

from headway.simulation.layout import NONE, World
from interp.jit import compiled

COPY_SHIFT = 40
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@compiled
def _home(key: int, size: int) -> int:
    return int((np.uint64(key) * MULTIPLIER) >> np.uint64(33)) & (size - 1)


@compiled
def _find(world: World, replica: int, key: int) -> int:
    """Position in the table at which `key` stands or would stand."""
    lookup, keys = world.prefix.lookup, world.prefix.key
    size = lookup.shape[1]
    place = _home(key, size)
    while lookup[replica, place] != NONE and keys[replica, lookup[replica, place]] != key:
        place = (place + 1) & (size - 1)
    return place


@compiled
def _remove(world: World, replica: int, place: int) -> None:
    """Empty one place of the table and close the gap behind it."""
    lookup, keys = world.prefix.lookup, world.prefix.key
    size = lookup.shape[1]
    hole = place
    following = (place + 1) & (size - 1)
    while lookup[replica, following] != NONE:
        home = _home(keys[replica, lookup[replica, following]], size)
        if ((following - home) & (size - 1)) >= ((following - hole) & (size - 1)):
            lookup[replica, hole] = lookup[replica, following]
            hole = following
        following = (following + 1) & (size - 1)
    lookup[replica, hole] = NONE


@compiled
def _unlink(world: World, replica: int, node: int) -> None:
    record, prefix = world.replicas[replica], world.prefix
    newer, older = prefix.newer[replica, node], prefix.older[replica, node]
    if newer == NONE:
        record.cache_head = older
    else:
        prefix.older[replica, newer] = older
    if older == NONE:
        record.cache_tail = newer
    else:
        prefix.newer[replica, older] = newer


@compiled
def _link_first(world: World, replica: int, node: int) -> None:
    record, prefix = world.replicas[replica], world.prefix
    prefix.newer[replica, node] = NONE
    prefix.older[replica, node] = record.cache_head
    if record.cache_head == NONE:
        record.cache_tail = node
    else:
        prefix.newer[replica, record.cache_head] = node
    record.cache_head = node


@compiled
def _touch(world: World, replica: int, key: int) -> None:
    """Make `key` the most recent block, evicting the oldest when the cache is full."""
    record, prefix = world.replicas[replica], world.prefix
    place = _find(world, replica, key)
    node = prefix.lookup[replica, place]
    if node != NONE:
        _unlink(world, replica, node)
    elif record.cache_blocks < world.settings[0].cache_capacity_blocks:
        node = record.cache_blocks
        record.cache_blocks += 1
    else:
        node = record.cache_tail
        _unlink(world, replica, node)
        _remove(world, replica, _find(world, replica, prefix.key[replica, node]))
        place = _find(world, replica, key)
    prefix.key[replica, node] = key
    prefix.lookup[replica, place] = node
    _link_first(world, replica, node)


@compiled
def clear(world: World, replica: int) -> None:
    """Forget everything that the replica had cached."""
    record = world.replicas[replica]
    record.cache_head, record.cache_tail, record.cache_blocks = NONE, NONE, 0
    world.prefix.lookup[replica, :] = NONE


@compiled
def cached_tokens(world: World, replica: int, request: int) -> int:
    """Leading prompt tokens of `request` that `replica` need not compute; at least one token is computed."""
    asked, prefix = world.requests[request], world.prefix
    hits = 0
    if world.settings[0].cache_capacity_blocks > 0:
        salt = asked.copy << COPY_SHIFT
        for i in range(asked.block_count):
            key = prefix.blocks[asked.block_start + i] + salt
            if prefix.lookup[replica, _find(world, replica, key)] == NONE:
                break
            hits += 1
    return min(hits * world.settings[0].block_tokens, asked.input_tokens - 1)


@compiled
def insert(world: World, replica: int, request: int) -> None:
    """Remember the prompt of `request` on `replica`."""
    if world.settings[0].cache_capacity_blocks > 0:
        asked = world.requests[request]
        salt = asked.copy << COPY_SHIFT
        for i in range(asked.block_count - 1, -1, -1):
            _touch(world, replica, world.prefix.blocks[asked.block_start + i] + salt)
