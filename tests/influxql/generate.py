"""Generates InfluxQL queries about data.lp from a seed.

The queries avoid cases that InfluxDB 1.6 answers differently each time, or wrongly. The README names these cases.
"""

import random

START_S = 1774656000  # 2026-03-28T00:00:00Z, the first instant of the data
FIELDS = {
    "climate": ["temp", "hum"],
    "cpu": ["usage_idle", "usage_user"],
    "power": ["value"],
    '"odd name"': ['"my field"', '"select"'],
}
TAGS = {
    "climate": ["device_id", "room", "floor"],
    "cpu": ["device_id", "cpu"],
    "power": ["phase", "device_id"],
    '"odd name"': ["device_id", '"a,b"'],
}
DEVICES = {"climate": ["S1", "S2", "S3", "S4"], "cpu": ["pi1", "pi2"], "power": ["M1"], '"odd name"': ["O:1"]}
VALUES = {
    "device_id": ["S1", "pi1", "M1", "nope"],
    "room": ["hall", "kitchen", "attic room", ""],
    "floor": ["0", "1", "2"],
    "cpu": ["cpu0", "cpu-total"],
    "phase": ["L1", "L2"],
    '"a,b"': ["x=y"],
}
PATTERNS = {
    "device_id": ["S[12]", "^pi", "3|4", ".*", "^$"],
    "room": ["^k", "a", ".+", "^$"],
    "floor": ["[01]"],
    "cpu": ["total$"],
    "phase": ["1"],
    '"a,b"': ["x"],
}
# The quarters of an hour, after the start, within which conditions on time begin and end.
QUARTERS = {"climate": (-8, 168), "cpu": (16, 40), "power": (-4, 36), '"odd name"': (-8, 96)}
WINDOWS = ["1h", "2h", "3h", "6h", "12h", "1d", "30m", "10m", "90m", "7m", "25m", "1h30m"]
OFFSETS = ["15m", "-15m", "1h", "-2h", "30m"]
# They divide twelve hours.
WINDOWS_OF_SUBQUERIES = ["1h", "2h", "3h", "6h", "12h", "30m", "10m", "90m"]
OF_STATS = ["count", "mean", "sum", "min", "max", "first", "last", "spread"]
OF_POINTS = ["median", "mode", "stddev"]
FILLS = ["", "", "", " fill(null)", " fill(none)", " fill(0)", " fill(previous)", " fill(linear)", " fill(7.5)"]
ZONES = ["Europe/Vienna", "America/New_York", "Asia/Kolkata", "UTC", "Asia/Tokyo"]


def generate(seed, count):
    """Different queries. A seed always gives the same ones."""
    dice, queries = random.Random(seed), {}
    while len(queries) < count:
        queries[Query(dice).text()] = None
    return list(queries)


def group_by(*dimensions):
    """The clause GROUP BY of the dimensions that are not empty."""
    dimensions = [dimension for dimension in dimensions if dimension]
    return " GROUP BY " + ", ".join(dimensions) if dimensions else ""


class Query:
    """A query of one measurement, or of several."""

    def __init__(self, dice):
        self.dice, self.choice, self.chance = dice, dice.choice, lambda share: dice.random() < share
        self.measurement = self.choice(["climate"] * 5 + ["cpu"] * 3 + ["power"] * 2 + ['"odd name"'])
        self.fields, self.tags = FIELDS[self.measurement], TAGS[self.measurement]

    def text(self):
        """The text of the query."""
        kinds = {
            self.windows: 8, self.whole: 4, self.rows: 4, self.selector: 3, self.several_points: 3, self.transform: 4,
            self.transform_of_windows: 4, self.subquery: 5, self.several_measurements: 2, self.show: 3, self.zone: 2,
        }
        return self.dice.choices(list(kinds), list(kinds.values()))[0]()

    # Conditions

    def instant(self, seconds):
        """An instant in one of its notations."""
        day, second = divmod(seconds - START_S + 28 * 86400, 86400)
        rfc3339 = f"'2026-03-{day:02}T{second // 3600:02}:{second % 3600 // 60:02}:00Z'"
        return self.choice([f"{seconds}s", f"{seconds * 10**9}", rfc3339])

    def between(self, first, last, is_bounded):
        """A lower bound on time, an upper one, or both. `first` and `last` are quarters of an hour after START_S."""
        low = f"time {self.choice(['>=', '>=', '>'])} {self.instant(START_S + first * 900)}"
        high = f"time {self.choice(['<', '<', '<='])} {self.instant(START_S + last * 900)}"
        if is_bounded or self.chance(0.7):
            return [low, high]
        return [self.choice([low, high])]

    def where(self, is_bounded=False, has_fields=True):
        """A condition on time, tags and fields, or none."""
        parts = []
        if is_bounded or self.chance(0.6):
            low, high = QUARTERS[self.measurement]
            hours = sorted(self.dice.randint(low // 4, high // 4) for _ in range(2))
            first, last = (hour * 4 + self.choice([0, 0, 0, 1, 2]) for hour in hours)
            parts += self.between(first, last + 4 if last <= first else last, is_bounded)
        if self.chance(0.45):
            parts.append(self.tag_condition())
        if has_fields and self.chance(0.2):
            parts.append(self.field_condition())
        self.dice.shuffle(parts)
        return " WHERE " + " AND ".join(parts) if parts else ""

    def half_days(self):
        """A condition on time whose bounds are half days."""
        first, last = sorted(self.dice.randint(0, 4) * 12 for _ in range(2))
        low, high = self.instant(START_S + first * 3600), self.instant(START_S + (last + 12) * 3600)
        return f"time >= {low} AND time < {high}"

    def tag_comparison(self):
        tag = self.choice(self.tags)
        if tag == "device_id" and self.chance(0.9):
            return f"device_id {self.choice(['=', '=', '=', '!='])} '{self.choice(DEVICES[self.measurement])}'"
        if self.chance(0.3):
            return f"{tag} {self.choice(['=~', '!~'])} /{self.choice(PATTERNS[tag])}/"
        return f"{tag} {self.choice(['=', '=', '=', '!='])} '{self.choice(VALUES[tag])}'"

    def tag_condition(self):
        count = self.choice([1, 1, 1, 2, 3])
        parts = [self.tag_comparison() for _ in range(count)]
        return parts[0] if count == 1 else "(" + self.choice([" AND ", " OR "]).join(parts) + ")"

    def field_condition(self):
        field, number = self.choice(self.fields), self.choice([0, 5, 10.5, 20, 50, -3])
        comparison = f"{field} {self.choice(['>', '<', '>=', '<=', '!=', '='])} {number}"
        if self.chance(0.2):
            return f"({comparison} OR {self.tag_condition()})"
        return f"{field} * 2 > {self.choice(self.fields)}" if self.chance(0.1) else comparison

    # Columns

    def field(self):
        return "nope" if self.chance(0.05) else self.choice(self.fields)

    def of_stats(self):
        return f"{self.choice(OF_STATS)}({self.field()})"

    def column(self):
        """An aggregate or some arithmetic, perhaps with an alias."""
        share = self.dice.random()
        if share < 0.04:
            return f"{self.choice(OF_STATS)}({self.choice(['*', '/e/', '/u/'])})"
        if share < 0.55:
            column = self.of_stats()
        elif share < 0.7:
            column = f"{self.choice(OF_POINTS)}({self.field()})"
        elif share < 0.75:
            column = f"count(distinct({self.field()}))"
        elif share < 0.9:
            right = self.choice(["2", "0.5", self.of_stats()])
            column = f"{self.of_stats()} {self.choice(['+', '-', '*', '/'])} {right}"
        else:
            column = f"({self.of_stats()} - {self.of_stats()}) / 3"
        return f"{column} AS {self.choice('abc')}{self.dice.randint(1, 3)}" if self.chance(0.2) else column

    def columns(self):
        return ", ".join(self.column() for _ in range(self.choice([1, 1, 2, 3])))

    # Clauses

    def group_tags(self):
        share = self.dice.random()
        if share < 0.35:
            return []
        if share < 0.6:
            return [self.choice(["*", "*", "*", "/d/"])]
        return self.dice.sample(self.tags, self.dice.randint(1, len(self.tags))) + ["nope"] * self.chance(0.05)

    def window(self):
        offset = f", {self.choice(OFFSETS)}" if self.chance(0.2) else ""
        return f"time({self.choice(WINDOWS)}{offset})"

    def fill(self):
        return self.choice(FILLS)

    def order(self):
        return " ORDER BY time DESC" if self.chance(0.15) else ""

    def limit(self, has_rows=True):
        clause = f" LIMIT {self.dice.randint(1, 8)}" if has_rows and self.chance(0.25) else ""
        if clause and self.chance(0.3):
            clause += f" OFFSET {self.dice.randint(1, 4)}"
        if self.chance(0.06):
            clause += f" SLIMIT {self.dice.randint(1, 3)}"
            clause += f" SOFFSET {self.dice.randint(1, 2)}" if self.chance(0.3) else ""
        return clause

    def select(self, columns, *clauses):
        return f"SELECT {columns} FROM {self.measurement}" + "".join(clauses)

    # Kinds of queries

    def windows(self):
        group = group_by(self.window(), *self.group_tags())
        return self.select(self.columns(), self.where(True), group, self.fill(), self.order(), self.limit())

    def whole(self):
        group = group_by(*self.group_tags())
        return self.select(self.columns(), self.where(), group, self.order(), self.limit())

    def rows(self):
        named = ", ".join([*self.dice.sample(self.fields + self.tags, 2), self.fields[0]])
        arithmetic = [f"{self.fields[0]} * 2 + 1", f"{self.fields[0]} - {self.fields[-1]} AS x"]
        columns = self.choice(["*", "*::field", "/e|u/", named, *arithmetic])
        if self.chance(0.5):
            return self.select(columns, self.where(), " GROUP BY *", self.order(), self.limit())
        return self.select(columns, self.where(True), group_by(*self.group_tags()), self.order(), self.limit(False))

    def selector(self):
        beside = self.choice(["", ", " + self.choice(self.fields + self.tags)])
        column = f"{self.choice(['min', 'max', 'first', 'last'])}({self.choice(self.fields)}){beside}"
        group = group_by(self.choice(["", self.window()]), "*")
        return self.select(column, self.where(True), group, self.fill(), self.order(), self.limit())

    def several_points(self):
        """Functions that give several points of a window, or one that is not its first or last."""
        field, count = self.choice(self.fields), self.dice.randint(1, 5)
        ranked = [f"top({field}, {count})", f"bottom({field}, {count})", f"top({field}, {self.choice(self.tags)}, 2)"]
        others = [f"distinct({field})", f"percentile({field}, {self.choice([50, 75, 90, 99.5])})", f"mode({field})"]
        column = self.choice(ranked + others)
        is_ranked = column in ranked
        if is_ranked and self.chance(0.3):
            column += ", " + self.choice(self.fields)
        group = group_by(self.choice(["", self.window()]), "*")
        return self.select(column, self.where(True), group, self.order(), self.limit(not is_ranked))

    def of_successive(self, inner):
        """A function of successive values. Where rounding decides about a row, its values are exact."""
        exact = inner.replace("sum(", "max(").replace("mean(", "min(")
        return self.choice([
            f"derivative({inner})", f"derivative({inner}, {self.choice(['1m', '1h'])})", f"difference({inner})",
            f"non_negative_derivative({exact}, 10m)", f"non_negative_difference({exact})",
            self.average(inner), f"cumulative_sum({inner})",
            f"elapsed({inner}, {self.choice(['1s', '1m', '1h'])})",
        ])

    def average(self, inner):
        """A moving average. The power has a sum instead: influxd loses its values after a very large one."""
        average = f"moving_average({inner}, {self.dice.randint(2, 5)})"
        return average if self.measurement != "power" else f"cumulative_sum({inner})"

    def transform(self):
        count = self.choice([1, 1, 1, 2])
        columns = ", ".join(self.of_successive(self.choice(self.fields)) for _ in range(count))
        return self.select(columns, self.where(), " GROUP BY *", self.order(), self.limit())

    def transform_of_windows(self):
        columns = [self.of_successive(self.of_stats()) for _ in range(self.choice([1, 1, 1, 2]))]
        columns += [self.of_stats()] * self.chance(0.2)
        group = group_by(self.window(), *self.group_tags())
        return self.select(", ".join(columns), self.where(True), group, self.fill(), self.order(), self.limit())

    def subquery(self):
        inner_tags = self.choice([[], [self.choice(self.tags)], self.tags])
        outer_tags = [tag for tag in inner_tags if self.chance(0.5)]
        field, has_windows = self.choice(self.fields), self.chance(0.7)
        aggregates = ["mean(a), max(b)", "sum(b)", "count(a)", "max(a) - min(a) AS d", "median(a)", "first(a)",
                      "stddev(a), spread(b)", "mean(*)"]
        outer = self.choice([*aggregates, "a, b", "*", "a + b AS s"])
        window = self.choice(["6h", "12h", "1d"]) if outer in aggregates and self.chance(0.4) else ""
        condition = [self.tag_condition()] * self.chance(0.4)
        time = self.half_days()
        if has_windows and not window and outer in aggregates:
            condition.append(time)
            time = ""
        group = group_by(f"time({self.choice(WINDOWS_OF_SUBQUERIES)})" if has_windows else "", *inner_tags)
        columns = f"{self.choice(OF_STATS)}({field}) AS a, {self.choice(OF_STATS)}({field}) AS b"
        where = " WHERE " + " AND ".join(condition) if condition else ""
        inner = self.select(columns, where, group, self.fill() if has_windows and not inner_tags else "")
        if self.chance(0.15):
            inner, outer_tags = self.select(field, self.where(True), " GROUP BY *"), []
            outer = f"{self.choice(['mean', 'max', 'count'])}({field})"
        end = group_by(f"time({window})" if window else "", *outer_tags) + (self.fill() if window else "")
        return f"SELECT {outer} FROM ({inner})" + (f" WHERE {time}" if time else "") + end

    def several_measurements(self):
        sources = self.choice(["climate, cpu", "/c.*/", "cpu, power", "/.*/", "climate, nope", "/^p/, climate"])
        time, share = f" WHERE {self.half_days()}", self.dice.random()
        if share < 0.6:
            fields = self.dice.sample(["temp", "usage_idle", "value", "hum"], self.choice([1, 2]))
            columns = ", ".join(f"{self.choice(OF_STATS)}({field})" for field in fields)
            group = group_by(self.choice(["", "time(6h)"]), self.choice(["", "device_id", "*"]))
            return f"SELECT {columns} FROM {sources}{time}{group}{self.order()}"
        if share < 0.8:
            columns = self.choice(["*", "temp, value", "/e/"])
            return f"SELECT {columns} FROM {sources}{time} GROUP BY *{self.order()}{self.limit()}"
        column = f"{self.choice(OF_STATS)}({self.choice(['*', '/e/'])})"
        return f"SELECT {column} FROM {sources}{time}{group_by(self.choice(['', 'device_id']))}"

    def show(self):
        where = f" WHERE {self.tag_condition()}" if self.chance(0.5) else ""
        is_simple = not any(part in where for part in ["!", "''", "^$", ".*", " AND "])
        simple = where if is_simple else ""
        names = [self.measurement, self.measurement, "/c.*/", "nope", "climate, power"]
        source = f" FROM {self.choice(names)}" if where or self.chance(0.5) else ""
        limit = f" LIMIT {self.dice.randint(1, 3)}" if self.chance(0.4) else ""
        limit += f" OFFSET {self.dice.randint(0, 2)}" if limit and self.chance(0.5) else ""
        keys = ["= device_id", "= room", "IN (room, cpu)", "=~ /o/", "!= floor", "!~ /d/", '= "a,b"']
        key = " WITH KEY " + self.choice(keys)
        return self.choice([
            f"SHOW MEASUREMENTS{simple}{limit}",
            f"SHOW MEASUREMENTS WITH MEASUREMENT =~ /{self.choice('cox')}/{limit}",
            f"SHOW TAG KEYS{source}{where}{limit}",
            f"SHOW TAG VALUES{source}{key}{where}{limit}",
            f"SHOW FIELD KEYS{source}{limit}",
            f"SHOW SERIES{source}{where}{limit}",
            f"SHOW SERIES EXACT CARDINALITY{source}{simple}",
            f"SHOW TAG VALUES CARDINALITY{source}{key}{simple}",
        ])

    def zone(self):
        fields = [self.choice(self.fields) for _ in range(self.choice([1, 2]))]
        columns = ", ".join(f"{self.choice(OF_STATS)}({field})" for field in fields)
        window = f"time({self.choice(['1h', '2h', '6h', '12h', '1d', '30m'])})"
        group = group_by(window, self.choice(["", "device_id"]))
        end = f"{self.order()}{self.limit()} tz('{self.choice(ZONES)}')"
        return self.select(columns, self.where(True), group, self.fill(), end)
