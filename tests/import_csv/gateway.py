"""Writes the file of a gateway with a local clock for a week, and prints the readings that it means.

usage: gateway.py ZONE FIRST_DAY MINUTES FORM FILE

FORM `german` has `;`, decimal commas, DD.MM.YYYY HH:MM, units in the header, CRLF, an empty column at the
end, a comment before the header, and Windows-1252. `iso` has `,`, points, and YYYY-MM-DD HH:MM. Standard
output has one line for each reading: device, Unix milliseconds, and values by metric as JSON.
"""

import json
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

zone, first_day, minutes, form, path = sys.argv[1:]
start = datetime.fromisoformat(first_day).replace(tzinfo=ZoneInfo(zone)).astimezone(timezone.utc)
end = (datetime.fromisoformat(first_day) + timedelta(days=7)).replace(tzinfo=ZoneInfo(zone)).astimezone(timezone.utc)

lines = []
if form == "german":
    lines += ["# Gateway 7; Halle 2", "Gerät;Zeit;Temperatur [°C];Druck (bar);Zustand;"]
    names, written = ("Temperatur{unit=°C}", "Druck{unit=bar}"), "%d.%m.%Y %H:%M"
else:
    lines += ["device,timestamp,temp,pressure"]
    names, written = ("temp", "pressure"), "%Y-%m-%d %H:%M"


def number(value):
    text = f"{value:.2f}"
    return text.replace(".", ",") if form == "german" else text


at, nth = start, 0
while at < end:
    for device in ("press-1", "press-2"):
        nth += 1
        values = [nth / 4 - 500, None if nth % 7 == 0 else nth % 40]
        local = at.astimezone(ZoneInfo(zone)).strftime(written)
        cells = [device, local] + ["" if value is None else number(value) for value in values]
        lines.append(";".join(cells + ["läuft", ""]) if form == "german" else ",".join(cells))
        found = {name: value for name, value in zip(names, values) if value is not None}
        print(device, int(at.timestamp() * 1000), json.dumps(found, ensure_ascii=False))
    at += timedelta(minutes=int(minutes))

with open(path, "wb") as file:
    if form == "german":
        file.write(("\r\n".join(lines) + "\r\n").encode("cp1252"))
    else:
        file.write(("\n".join(lines) + "\n").encode())
