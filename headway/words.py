"""Figures as people read them; sentences, tables and pages share these."""

import time
from collections.abc import Sequence


def percent(share: float | None) -> str:
    """A share in percent; enough digits that 99.99 % is not 100 %."""
    return "n/a" if share is None else f"{share * 100:.4g} %"


def ratio(value: float | None) -> str:
    """A multiple."""
    return "n/a" if value is None else f"{value:.2f} ×"


def milliseconds(value_s: float | None) -> str:
    """Seconds in milliseconds, to four digits or whole."""
    if value_s is None:
        return "n/a"
    return f"{value_s * 1e3:,.0f}" if value_s >= 1 else f"{value_s * 1e3:.4g}"


def plural(count: int, thing: str) -> str:
    """`1 reversal`, `2 reversals`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def first_few(things: Sequence[str], between: str = ", ") -> str:
    """The first three, and how many more there are."""
    more = f" and {len(things) - 3} more" if len(things) > 3 else ""
    return between.join(things[:3]) + more


def duration(seconds: float) -> str:
    """A time span as a person says it."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    value, unit = (seconds / 60, "min") if seconds < 7200 else (seconds / 3600, "h")
    return f"{round(value, 1) if value < 10 else round(value):,g} {unit}"


def scaled(name: str, rate_scale: float) -> str:
    """A trace's name, with its scale if it has one."""
    return name if rate_scale == 1 else f"{name} × {rate_scale:g}"


def targets(ttft_s: float, itl_s: float, between: str = ", ") -> str:
    """`TTFT 300 ms, ITL 20 ms`."""
    return f"TTFT {ttft_s * 1e3:g} ms{between}ITL {itl_s * 1e3:g} ms"


def clock(unix_s: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def shown(value: float | None) -> str:
    """A number to three digits, or whole; `n/a` for none."""
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def money(value: float | None, currency: str) -> str:
    """An amount, such as `$9.15` or `9.15 EUR`; the number alone without a currency."""
    if value is None:
        return "n/a"
    number, sign = f"{abs(value):,.0f}" if abs(value) >= 100.0 else f"{abs(value):,.2f}", "-" * (value < 0.0)
    return f"{sign}{number} {currency}".strip() if currency.isalpha() else f"{sign}{currency}{number}"
