"""`headway profile`: measure an engine; `show`, `compare`, `import` and `export` profiles."""

from pathlib import Path
from typing import Annotated

import typer

from headway_cli.control import UrlOption
from headway_cli.flags import spread
from headway_cli.load_options import KEY_VARIABLE, KeyVariable
from headway_cli.profile_options import ProfileOptions

Directory = Annotated[str, typer.Argument(metavar="DIR", help="A profile, or what `headway profile` wrote.")]
Plot = Annotated[str | None, typer.Option(metavar="FILE", help="Write the curves as an HTML page.")]


def register(app: typer.Typer) -> None:
    """Add the verb and those below it."""
    group = typer.Typer(rich_markup_mode=None, add_completion=False)
    group.callback(invoke_without_command=True)(profile)
    group.command("show")(show)
    group.command("compare")(compare)
    group.command("import")(import_)
    group.command("export")(export)
    app.add_typer(group, name="profile")


@spread(ProfileOptions)
def profile(*, options: ProfileOptions, context: typer.Context) -> None:
    """Measure an engine's latencies, and recommend tensor-parallel sizes for a load and its SLO."""
    if context.invoked_subcommand is not None:
        return
    from headway_cli.output import write_text
    from headway_cli.page.profile import render
    from headway_cli.profile_document import chosen, profile_entry, recommendation_lines
    from headway_cli.profile_job import PAGE, run_profile
    from headway_cli.profile_places import RECOMMENDED

    run = run_profile(options)
    entries = [
        profile_entry(f"TP {tp}", one.profile, one.tables.prefill_spread, one.tables.decode_spread)
        for tp, one in run.swept.items()
    ]
    found, root = chosen(run.recommendation), Path(str(options.output))
    models = ", ".join(dict.fromkeys(Path(str(one.question["model"])).name for one in run.swept.values()))
    write_text(root / PAGE, render({"title": models, "profiles": entries, "recommendation": found}))
    for line in recommendation_lines(found):
        print(line)
    for tp in run.incomplete:
        print(f"tp {tp}: time was up before all points were measured; the same command goes on")
    print(f"wrote {root / RECOMMENDED}, {', '.join(f'tp{tp}' for tp in run.swept)} and {PAGE} beside it")


def show(directory: Directory, plot: Plot = None) -> None:
    """Check a profile and say what is in it."""
    from headway_cli.output import check_outputs, write_text
    from headway_cli.page.profile import render
    from headway_cli.profile_document import profile_entry
    from headway_cli.profile_places import profile_places
    from headway_cli.profile_tables import print_profile
    from headway_cli.tables import console
    from interp import load_profile

    check_outputs({"--plot": plot})
    entries = [profile_entry(name, load_profile(place)) for name, place in profile_places(directory).items()]
    if plot is not None:
        write_text(Path(plot), render({"title": directory, "profiles": entries, "recommendation": None}))
    for entry in entries:
        print_profile(entry, console())


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A profile directory.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The profile that is held against it.")],
    plot: Plot = None,
) -> None:
    """Say how much slower or faster B is than A, at the samples of A."""
    from headway.profiling.comparison import compare_profiles
    from headway_cli.output import check_outputs, write_text
    from headway_cli.page.profile import render
    from headway_cli.profile_document import profile_entry
    from headway_cli.profile_places import profile_places
    from headway_cli.profile_tables import print_ratios
    from headway_cli.tables import console
    from interp import load_profile

    check_outputs({"--plot": plot})
    one, other = (load_profile(next(iter(profile_places(place).values()))) for place in (first, second))
    if plot is not None:
        entries = [profile_entry(f"A: {first}", one), profile_entry(f"B: {second}", other)]
        title = f"{second} against {first}"
        write_text(Path(plot), render({"title": title, "profiles": entries, "recommendation": None}))
    print_ratios(f"{second} / {first}", compare_profiles(one, other), console())


def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="AIBrix's JSON, or a folder with prefill.npz, decode.npz.")
    ],
    output: Annotated[
        str, typer.Option(metavar="DIR", help="The profile; of a folder, one below it per TP.")
    ],
    max_kv_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="AIBrix: tokens in the KV cache of one engine.")
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", help="AIBrix: GPUs of one engine.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace profiles that exist.")] = False,
) -> None:
    """Turn a profile of another system into profile directories."""
    from headway_cli.profile_import import import_profiles

    for place in import_profiles(Path(source), Path(output), max_kv_tokens, tp, overwrite=overwrite):
        print(f"wrote {place}")


def export(
    output: Annotated[str, typer.Option(metavar="DIR", help="The profile directory to write.")],
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a profile that exists.")] = False,
) -> None:
    """Write the profile that a running deployment plans by, with what traffic taught of it."""
    from headway_cli.control import client
    from headway_cli.profile_export import export_profile

    refined = export_profile(client(url, api_key_env), Path(output), overwrite=overwrite)
    how = (
        "as measured"
        if refined is None
        else f"refined in {refined['cells']} cells, version {refined['version']}"
    )
    print(f"wrote {output}: {how}")
