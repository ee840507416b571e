"""`headway profile`: measure an engine; `list`, `show`, `compare`, `import` and `export` profiles."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.config import embedded_profiles, load_config, resolve_profile
from headway.planning import Slo
from headway.profiling import refuse_what_exists
from headway.profiling.comparison import Recommendation, TargetLoad, compare_profiles, recommend
from headway.profiling.foreign_profiles import import_aibrix, import_pre_swept, is_pre_swept
from headway.profiling.points import ForeignProfile
from headway.profiling.result_files import import_mocker, import_results
from headway.workload.known_files import AIBRIX, GUIDELLM, MOCKER, VLLM, known_file
from headway_cli.control import KEY_VARIABLE, KeyVariable, UrlOption, client
from headway_cli.errors import CliError
from headway_cli.flags import argument, option, spread, switch
from headway_cli.options import Itl, Ttft, listed
from headway_cli.output import check_outputs, write_text
from headway_cli.page.profile import render
from headway_cli.profile_fleet import PATH, profile_from, run_fleet
from headway_cli.profile_run import PAGE, RECOMMENDED, run_profile
from headway_cli.profile_targets import ProfileOptions
from headway_cli.profile_view import (
    ShownProfile,
    print_listed,
    print_profile,
    print_ratios,
    recommendation_lines,
)
from headway_cli.terminal import console, print_facts
from interp import ProfileError, load_profile, save_profile
from interp.storage import PROFILE_ENTRIES, READINGS, is_profile_directory, refuse_implausible

Directory = Annotated[str, argument("DIR", "A profile, or what `headway profile` wrote.")]
Plot = Annotated[str | None, option("FILE", "Write the curves as an HTML page.")]
LARGEST = 1e12
"""Beyond any length or target in milliseconds."""

verbs = typer.Typer(rich_markup_mode=None, add_completion=False)


@verbs.callback(invoke_without_command=True)
@spread(ProfileOptions)
def profile(*, options: ProfileOptions, context: typer.Context) -> None:
    """Measure an engine's latencies, and recommend tensor-parallel sizes for a load and its SLO."""
    if context.invoked_subcommand is not None:
        return
    if options.fleet is not None:
        for line in run_fleet(options):
            print(line)
        return
    run = run_profile(options)
    profiles = [
        ShownProfile(
            name=f"TP {tp}",
            profile=one.profile,
            prefill_spread=one.tables.prefill_spread,
            decode_spread=one.tables.decode_spread,
        )
        for tp, one in run.swept.items()
    ]
    root = Path(str(options.output))
    models = ", ".join(dict.fromkeys(Path(str(one.question["model"])).name for one in run.swept.values()))
    write_text(root / PAGE, render(models, profiles, run.recommendation))
    for line in recommendation_lines(run.recommendation):
        print(line)
    for tp in run.incomplete:
        print(f"tp {tp}: time was up before all points were measured; the same command goes on")
    print(f"wrote {root / RECOMMENDED}, {', '.join(f'tp{tp}' for tp in run.swept)} and {PAGE} beside it")


@verbs.command("list")
def list_() -> None:
    """The embedded profiles: GPUs, KV cache, and latencies at a few places."""
    print_listed({name: load_profile(resolve_profile(name)) for name in embedded_profiles()}, console())


@verbs.command("show")
def show(
    directory: Directory,
    *,
    plot: Plot = None,
    isl: Annotated[float, option("TOKENS", "Input tokens of the operating point.")] = 3000.0,
    osl: Annotated[float, option("TOKENS", "Output tokens of the operating point.")] = 150.0,
    ttft_ms: Ttft = None,
    itl_ms: Itl = None,
) -> None:
    """Check a profile and say what is in it, and where it works best within the targets."""
    check_outputs({"--plot": plot})
    profiles = _shown(directory)
    load = _load(isl, osl, {"slo.ttft_ms": ttft_ms, "slo.itl_ms": itl_ms})
    if plot is not None:
        write_text(Path(plot), _page(directory, profiles, load))
    for one in profiles:
        print_profile(one, console())
    print_facts(
        {f"At {isl:g} + {osl:g} tokens": "; ".join(recommendation_lines(_best(profiles, load)))}, console()
    )


def profile_page(directory: str) -> str:
    """The page of a profile directory, for the load and targets of its run, or the defaults of `show`."""
    profiles = _shown(directory)
    return _page(directory, profiles, _asked(profiles[0].profile.meta) or _load(3000.0, 150.0, {}))


def _asked(meta: Mapping[str, Any]) -> TargetLoad | None:
    """The load and targets that a run's recommendation is for; None where the profile does not say."""
    said = meta.get("recommended_for")
    keys = ("isl", "osl", "ttft_ms", "itl_ms")
    figures = [said.get(key) for key in keys] if isinstance(said, dict) else []
    known = [value for value in figures if isinstance(value, int | float) and 0 < value < LARGEST]
    if len(known) < len(keys):
        return None
    isl, osl, ttft_ms, itl_ms = known
    return TargetLoad(isl_tokens=isl, osl_tokens=osl, slo=Slo(ttft_s=ttft_ms / 1e3, itl_s=itl_ms / 1e3))


def _load(isl: float, osl: float, overrides: Mapping[str, object]) -> TargetLoad:
    slo = load_config(None, overrides).slo
    return TargetLoad(isl_tokens=isl, osl_tokens=osl, slo=Slo(ttft_s=slo.ttft_s, itl_s=slo.itl_s))


def _page(directory: str, profiles: Sequence[ShownProfile], load: TargetLoad) -> str:
    # What is recommended is one of the sizes, or parts of two: they alone are drawn.
    sizes = [one for one in profiles if one.name != RECOMMENDED] or profiles
    models = [Path(str(one.profile.meta["model"])).name for one in sizes if "model" in one.profile.meta]
    return render(
        ", ".join(dict.fromkeys(models)) or Path(directory).resolve().name, sizes, _best(sizes, load)
    )


def _shown(directory: str) -> list[ShownProfile]:
    places = profile_places(directory).items()
    return [ShownProfile(name=name, profile=load_profile(place)) for name, place in places]


def _best(profiles: Sequence[ShownProfile], load: TargetLoad) -> Recommendation:
    return recommend({one.profile.gpus_per_engine: one.profile for one in profiles}, load)


@verbs.command("compare")
def compare(
    first: Annotated[str, argument("A", "A profile directory.")],
    second: Annotated[str, argument("B", "The profile that is held against it.")],
    plot: Plot = None,
) -> None:
    """Say how much slower or faster B is than A, at the samples of A."""
    check_outputs({"--plot": plot})
    one, other = (load_profile(next(iter(profile_places(place).values()))) for place in (first, second))
    if plot is not None:
        profiles = [
            ShownProfile(name=f"A: {first}", profile=one),
            ShownProfile(name=f"B: {second}", profile=other),
        ]
        write_text(Path(plot), render(f"{second} against {first}", profiles))
    print_ratios(f"{second} / {first}", compare_profiles(one, other), console())


@verbs.command("import")
def import_(
    source: Annotated[
        str, argument("SOURCE", "A profile or benchmark result of another system, or a folder of them.")
    ],
    *,
    output: Annotated[str, option("DIR", "The profile; of pre-swept results, one below it per TP.")],
    max_kv_tokens: Annotated[
        int | None, option("N", "Tokens in the KV cache of one engine, where SOURCE does not say it.")
    ] = None,
    tp: Annotated[int, option("N", "GPUs of one engine, likewise.")] = 1,
    reading: Annotated[
        str | None, option("LIST", f"How a profile directory is meant: {', '.join(READINGS)}, with commas.")
    ] = None,
    overwrite: Annotated[bool, switch("--overwrite", "Replace profiles that exist.")] = False,
) -> None:
    """Turn a profile of another system into profile directories."""
    if tp < 1:
        raise CliError(f"--tp: expected at least 1, got {tp}")
    if max_kv_tokens is not None and max_kv_tokens < 1:
        raise CliError(f"--max-kv-tokens: expected at least 1, got {max_kv_tokens}")
    readings = () if reading is None else listed("--reading", reading)
    if unknown := sorted({*readings} - READINGS.keys()):
        raise CliError(f"--reading: unknown {unknown[0]}; known: {', '.join(READINGS)}")
    places = _read(Path(source), Path(output), max_kv_tokens, tp, readings)
    for place in places:
        refuse_what_exists(place, overwrite=overwrite)
    for place, found in places.items():
        refuse_implausible(Path(source), found.prefill, found.decode)
        save_profile(place, found.prefill, found.decode, found.meta)
        print(f"wrote {place}")


@verbs.command("export")
def export(
    output: Annotated[str, option("DIR", "The profile directory to write.")],
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    overwrite: Annotated[bool, switch("--overwrite", "Replace a profile that exists.")] = False,
) -> None:
    """Write the profile that a running deployment plans by, with what traffic taught of it."""
    refuse_what_exists(Path(output), overwrite=overwrite)
    server = client(url, api_key_env)
    document = server.get(PATH)
    try:
        found = profile_from(document)
    except (KeyError, TypeError, ValueError, ProfileError) as error:
        raise CliError(f"{server.url}{PATH}: the answer is not a profile: {error}") from error
    save_profile(Path(output), found.prefill.samples, found.decode.samples, found.meta)
    how = "as measured"
    if refined := found.meta.get("refined"):
        how = f"refined in {refined['cells']} cells, version {refined['version']}"
    print(f"wrote {output}: {how}")


def profile_places(name: str) -> Mapping[str, Path]:
    """By their names: a profile directory or an embedded profile; of a run, the recommended one and every TP.

    Raises ConfigError.
    """
    place = resolve_profile(name, key="profile")
    if not (place / RECOMMENDED).is_dir():
        return {place.resolve().name: place}
    sizes = sorted((path for path in place.glob("tp*") if path.is_dir()), key=_tp)
    return {path.name: path for path in (place / RECOMMENDED, *sizes)}


def is_profile(directory: str) -> bool:
    """True for a profile, even one that is broken, and for what a run wrote."""
    return any((Path(directory) / name).exists() for name in (*PROFILE_ENTRIES, RECOMMENDED))


def _tp(path: Path) -> int:
    digits = path.name.removeprefix("tp")
    return int(digits) if digits.isdecimal() else 0


def _read(
    source: Path, output: Path, max_kv_tokens: int | None, gpus: int, readings: Sequence[str]
) -> dict[Path, ForeignProfile]:
    """The profiles in a file or folder by what it is, and where each is to be written."""
    if is_profile_directory(source):
        own = load_profile(source, readings, gpus)
        return {
            output: ForeignProfile(
                tp=gpus, prefill=own.prefill.samples, decode=own.decode.samples, meta=own.meta
            )
        }
    if readings:
        raise CliError(f"--reading: is for profile directories; {source} is none")
    if is_pre_swept(source):
        return {output / f"tp{found.tp}": found for found in import_pre_swept(source)}
    if source.is_dir() and len(known := [each for each in source.iterdir() if known_file(each)]) == 1:
        source = known[0]
    kind = known_file(source)
    readers = {AIBRIX: import_aibrix, MOCKER: import_mocker, VLLM: import_results, GUIDELLM: import_results}
    if source.is_dir() or kind in readers:
        read = import_results if kind is None else readers[kind]
        return {output: read(source, max_kv_tokens=max_kv_tokens, gpus=gpus)}
    if kind is not None:
        raise CliError(f"{source}: taken for {kind.name}, not for a whole profile: {kind.profile}")
    raise CliError(f"{source}: {'no file that has a profile' if source.is_file() else 'no such file'}")
