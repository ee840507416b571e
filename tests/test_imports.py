"""No module imports itself by way of others, in any package; imports for types and late imports count too."""

from collections.abc import Iterator

import grimp

from tests.packages import PACKAGES


def circles(graph: grimp.ImportGraph) -> Iterator[list[str]]:
    """A path from a module to itself, for each module that can be reached from itself."""
    # A module that imports nothing is in no circle. Dropped again and again, these leave few to search from.
    left = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    before = 0
    while before != len(left):
        before = len(left)
        left = {module: imported & left.keys() for module, imported in left.items() if imported & left.keys()}
    for module in sorted(left):
        for imported in sorted(left[module]):
            if chain := graph.find_shortest_chain(imported, module):
                yield [module, *chain]


def test_no_module_is_in_a_circle():
    found = circles(grimp.build_graph(*PACKAGES, cache_dir=None))
    assert next(found, None) is None


def test_a_circle_would_be_found():
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")):
        graph.add_import(importer=importer, imported=imported)
    assert next(circles(graph)) == ["b", "c", "b"]
