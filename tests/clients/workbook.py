"""Prints a workbook as openpyxl reads it, as JSON: each sheet with its name, its rows, and how it is shown. A cell is
null, a number, a text, true or false, or {"date": the time of a date}. Takes the path of the workbook."""

import datetime
import json
import sys

import openpyxl


def cell(found):
    if found.data_type == "f":
        sys.exit(f"{found.coordinate} is a formula: {found.value}")
    if isinstance(found.value, datetime.datetime):
        return {"date": found.value.isoformat(sep=" ", timespec="milliseconds")}
    return found.value


def sheet(found):
    header = next(found.iter_rows(max_row=1))
    return {
        "name": found.title,
        "frozen": found.freeze_panes,
        "bold": all(cell.font.bold for cell in header),
        "widths": [found.column_dimensions[cell.column_letter].width for cell in header],
        "rows": [[cell(one) for one in row] for row in found.iter_rows()],
    }


json.dump([sheet(found) for found in openpyxl.load_workbook(sys.argv[1])], sys.stdout)
