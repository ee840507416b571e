"""Profile directories: written and read back, and each way in which one can be wrong."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interp_cases import decode_samples, grid_samples, prefill_samples

import interp.storage
from interp import ProfileError, load_profile, save_profile
from interp.storage import DECODE_FILE, PREFILL_FILE


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_profile(tmp_path / "profile", prefill_samples(), grid_samples(), {"model": "invented", "tp": 1})
    return tmp_path / "profile"


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite an npz file after `change` has worked on its arrays."""
    with np.load(path) as archive:
        arrays = dict(archive)
    change(arrays)
    np.savez(path, **arrays)


def one_line(error: pytest.ExceptionInfo[ProfileError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_what_is_written_is_read_back(directory: Path) -> None:
    profile = load_profile(directory)
    prefill, decode = prefill_samples(), grid_samples()
    for name in prefill.__slots__:
        np.testing.assert_allclose(getattr(profile.prefill.samples, name), getattr(prefill, name), rtol=1e-15)
    for name in ("kv_usage", "context_tokens", "itl_s", "throughput_per_gpu"):
        np.testing.assert_allclose(getattr(profile.decode.samples, name), getattr(decode, name), rtol=1e-15)
    assert profile.decode.table.max_kv_tokens == decode.max_kv_tokens
    assert profile.meta == {"model": "invented", "tp": 1}


def test_files_are_in_milliseconds_under_the_agreed_names(directory: Path) -> None:
    with np.load(directory / PREFILL_FILE) as archive:
        assert set(archive) == {"prefill_isl", "prefill_ttft", "prefill_thpt_per_gpu"}
        assert archive["prefill_ttft"][0] == pytest.approx(1000 * prefill_samples().ttft_s[0])
    with np.load(directory / DECODE_FILE) as archive:
        assert set(archive) == {"max_kv_tokens", "x_kv_usage", "y_context_length", "z_itl", "z_thpt_per_gpu"}
        assert archive["max_kv_tokens"].tolist() == [100_000]
        assert archive["z_itl"][0] == pytest.approx(1000 * grid_samples().itl_s[0])


def test_the_same_samples_give_the_same_bytes(tmp_path: Path, directory: Path) -> None:
    save_profile(tmp_path / "again", prefill_samples(), grid_samples(), {"tp": 1, "model": "invented"})
    for file in sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file()):
        assert (tmp_path / "again" / file).read_bytes() == (directory / file).read_bytes()


def test_meta_is_optional_and_loads_as_empty(tmp_path: Path) -> None:
    save_profile(tmp_path / "a" / "b", prefill_samples(), grid_samples())
    assert not (tmp_path / "a" / "b" / "meta.json").exists()
    assert load_profile(str(tmp_path / "a" / "b")).meta == {}


def test_an_existing_profile_is_replaced_and_nothing_else_remains(directory: Path) -> None:
    itl = grid_samples().itl_s * 2
    slower = decode_samples(grid_samples().kv_usage, grid_samples().context_tokens, itl)
    save_profile(directory, prefill_samples(), slower)
    assert load_profile(directory).decode.samples.itl_s[0] == pytest.approx(itl[0])
    assert [path.name for path in directory.parent.iterdir()] == ["profile"]
    assert not (directory / "meta.json").exists()


def test_a_write_that_fails_leaves_what_was_there(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    savez = np.savez

    def full_disk(file: Any, **arrays: Any) -> None:
        if "z_itl" in arrays:
            raise OSError("No space left on device")
        savez(file, **arrays)

    monkeypatch.setattr(np, "savez", full_disk)
    for target in (directory, directory.parent / "new"):
        with pytest.raises(ProfileError, match=r"cannot be written.*No space left") as error:
            save_profile(target, prefill_samples(), grid_samples())
        one_line(error)
    assert [path.name for path in directory.parent.iterdir()] == ["profile"]
    assert load_profile(directory).meta["model"] == "invented"


def test_a_swap_that_fails_is_undone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def refuse_fresh(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError("not now")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_fresh)
    with pytest.raises(ProfileError, match=r"not now"):
        save_profile(directory, prefill_samples(), grid_samples())
    assert load_profile(directory).meta["model"] == "invented"


def test_a_directory_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ProfileError, match=r"not replaced, holds 'thesis\.tex'"):
        save_profile(tmp_path, prefill_samples(), grid_samples())
    with pytest.raises(ProfileError, match="not a directory"):
        save_profile(tmp_path / "thesis.tex", prefill_samples(), grid_samples())
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("meta", [{"tp": "two"}, {"when": object()}, {"share": float("nan")}])
def test_meta_that_would_not_load_again_is_not_written(tmp_path: Path, meta: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match=r"meta\.json"):
        save_profile(tmp_path / "profile", prefill_samples(), grid_samples(), meta)
    assert not (tmp_path / "profile").exists()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="nowhere: no such profile directory"):
        load_profile(tmp_path / "nowhere")


@pytest.mark.parametrize("file", [PREFILL_FILE, DECODE_FILE])
def test_a_file_that_is_not_there(directory: Path, file: Path) -> None:
    (directory / file).unlink()
    with pytest.raises(ProfileError, match=rf"{file}: no such file") as error:
        load_profile(directory)
    one_line(error)


KEYS = [
    *((PREFILL_FILE, key) for key in interp.storage.PREFILL_KEYS),
    *((DECODE_FILE, key) for key in ("max_kv_tokens", *interp.storage.DECODE_KEYS)),
]


def refused(directory: Path, file: Path, key: str, rule: str) -> None:
    with pytest.raises(ProfileError) as error:
        load_profile(directory)
    assert str(directory / file) in one_line(error)
    assert key in str(error.value)
    assert rule in str(error.value)


def first_is(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.concatenate([[value], array[1:].astype(float)])


def set_first(key: str, value: float) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.update({key: first_is(value)(arrays[key])})


CHANGES: dict[str, tuple[Callable[[np.ndarray], Any], str]] = {
    "missing": (lambda _: None, ": missing, found "),
    **{f"{value} in it": (first_is(value), "must be finite") for value in (np.nan, np.inf, -np.inf)},
    **{
        f"{value} in it": (first_is(value), f"must be positive, is {value:g} at index 0")
        for value in (0.0, -1.0)
    },
    "shorter than the others": (lambda array: array[:-1], "arrays of different lengths"),
    "of two dimensions": (lambda _: np.ones((2, 2)), "shape (2, 2)"),
    "of objects": (lambda _: np.array([{"a": 1}, None], dtype=object), "not readable"),
    **{
        f"of {dtype}": (
            lambda array, dtype=dtype: np.ones(len(array), int).astype(dtype),
            "must hold numbers",
        )
        for dtype in ("U5", "c16", "?", "M8[s]")
    },
}
"""What happens to one array of a file, and what the error then says."""
ALLOWED = {("shorter than the others", "max_kv_tokens"), ("0.0 in it", "x_kv_usage")}


@pytest.mark.parametrize(("file", "key"), KEYS)
@pytest.mark.parametrize("name", CHANGES)
def test_an_array_that_is_wrong_is_named(directory: Path, file: Path, key: str, name: str) -> None:
    if (name, key) in ALLOWED:
        return
    change, rule = CHANGES[name]
    rule = "must lie in [0, 1]" if (name, key) == ("-1.0 in it", "x_kv_usage") else rule

    def changed(arrays: dict[str, Any]) -> None:
        arrays[key] = change(arrays[key])
        if arrays[key] is None:
            del arrays[key]

    edit(directory / file, changed)
    refused(directory, file, key, rule)


@pytest.mark.parametrize("value", [-0.1, 1.1, 1 + 1e-8])
def test_kv_usage_outside_its_range(directory: Path, value: float) -> None:
    edit(directory / DECODE_FILE, set_first("x_kv_usage", value))
    refused(directory, DECODE_FILE, "x_kv_usage", "must lie in [0, 1]")


def test_kv_usage_may_be_rounded_above_one(directory: Path) -> None:
    edit(directory / DECODE_FILE, set_first("x_kv_usage", 1 + 1e-10))
    assert load_profile(directory).decode.samples.kv_usage.max() == 1.0


def test_too_few_samples(directory: Path) -> None:
    def keep(count: int) -> Callable[[dict[str, Any]], None]:
        return lambda arrays: arrays.update(
            {key: array[:count] for key, array in arrays.items() if key != "max_kv_tokens"}
        )

    edit(directory / DECODE_FILE, keep(1))
    assert load_profile(directory).decode.samples.kv_usage.tolist() == [0.02]
    edit(directory / DECODE_FILE, keep(0))
    refused(directory, DECODE_FILE, "x_kv_usage", "at least 1 samples needed, found 0")
    edit(directory / PREFILL_FILE, keep(1))
    refused(directory, PREFILL_FILE, "prefill_isl", "at least 2 samples needed, found 1")


def test_one_input_length_is_not_a_curve(directory: Path) -> None:
    edit(directory / PREFILL_FILE, lambda arrays: arrays["prefill_isl"].fill(512))
    refused(directory, PREFILL_FILE, "prefill_isl", "at least 2 different values needed")


def single_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ones(3))
    return buffer.getvalue()


def zip_of_text() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("prefill_isl.npy", "not an array")
    return buffer.getvalue()


NOT_NPZ = [b"", b"PK\x03\x04 broken", b"hello", b"\x80\x04N.", single_array(), zip_of_text()]


@pytest.mark.parametrize("content", NOT_NPZ)
def test_a_file_that_is_not_an_npz(directory: Path, content: bytes) -> None:
    (directory / PREFILL_FILE).write_bytes(content)
    refused(directory, PREFILL_FILE, "", "")


def test_a_file_cut_short_or_damaged_inside(directory: Path) -> None:
    path = directory / PREFILL_FILE
    content = path.read_bytes()
    for cut in range(0, len(content), 97):
        path.write_bytes(content[:cut])
        refused(directory, PREFILL_FILE, "", "")
    damaged = bytearray(content)
    damaged[200] ^= 0xFF
    path.write_bytes(damaged)
    refused(directory, PREFILL_FILE, "prefill_isl", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not readable JSON"),
        ("[1]", "must hold a JSON object, holds list"),
        ("[" * 100_000, "not readable JSON"),
        (json.dumps({"tp": -2}), "tp: must be a number from 1 to 1e+09, is -2"),
        (json.dumps({"tp": 10**400}), "tp: must be a number from 1 to 1e+09, is 1000"),
        (json.dumps({"max_batch_size": "many"}), "max_batch_size: must be a number from 1 to 1e+09"),
        (json.dumps({"max_batch_size": 0.5}), "max_batch_size: must be a number from 1 to 1e+09, is 0.5"),
    ],
)
def test_meta_that_is_wrong(directory: Path, text: str, said: str) -> None:
    (directory / "meta.json").write_text(text)
    with pytest.raises(ProfileError, match=r"meta\.json: ") as error:
        load_profile(directory)
    assert said in one_line(error)
    assert str(directory) in str(error.value)
