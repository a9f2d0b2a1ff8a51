"""The time in any zone, with models of pydantic: after the time server of the reference collection.

trio-mcp run examples/ported/time_server.py
"""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, Field

from trio_mcp import Server, ToolError

server = Server("time", "1.0", instructions="Current times, and times in one zone as times in another.")

Zone = Annotated[str, Field(description="Name of a zone, such as Europe/Warsaw.", examples=["Asia/Tokyo"])]


class TimeResult(BaseModel):
    """A time in a zone."""

    timezone: str
    datetime: str
    is_dst: bool = Field(description="Whether daylight saving time holds.")


class TimeConversion(BaseModel):
    """One moment in two zones."""

    source: TimeResult
    target: TimeResult
    time_difference: str = Field(description="Hours that the target is ahead.", examples=["+5.75h"])


def zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ToolError(f"there is no time zone {name!r}") from None


def in_zone(moment: datetime, name: str) -> TimeResult:
    return TimeResult(timezone=name, datetime=moment.isoformat(timespec="seconds"), is_dst=bool(moment.dst()))


@server.tool
def get_current_time(timezone: Zone) -> TimeResult:
    """Get the current time in a zone."""
    return in_zone(datetime.now(zone_of(timezone)), timezone)


@server.tool
def convert_time(source_timezone: Zone, time: time, target_timezone: Zone, day: date | None = None) -> TimeConversion:
    """Convert a time of a day, today unless given, from one zone to another."""
    source, target = zone_of(source_timezone), zone_of(target_timezone)
    moment = datetime.combine(day or datetime.now(source).date(), time.replace(tzinfo=None), source)
    there = moment.astimezone(target)
    ahead = (there.utcoffset() or datetime.min - datetime.min) - (moment.utcoffset() or datetime.min - datetime.min)
    return TimeConversion(
        source=in_zone(moment, source_timezone),
        target=in_zone(there, target_timezone),
        time_difference=f"{ahead.total_seconds() / 3600:+g}h",
    )
