"""Every command block of the README and of docs/start has a test that runs it, or a reason why none can."""

from tests.start.printed import PAGES, ROOT, SHOWN, blocks


def test_every_block_has_its_test() -> None:
    there = {(page, number) for page in PAGES for number in range(1, len(blocks(page)) + 1)}
    assert there == set(SHOWN)
    folder = ROOT / "tests"
    assert not [test for test in SHOWN.values() if test.endswith(".py") and not (folder / test).is_file()]
    assert len([why for why in SHOWN.values() if not why.endswith(".py")]) <= 2
