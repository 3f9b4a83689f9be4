"""Published tables under tests/data, and a way to run the command on them."""

import csv
import io
from pathlib import Path

DATA = Path(__file__).parents[2] / "data"
CASTRO = DATA / "castro"
CAPS = DATA / "krzywaniak" / "table2_rtx6000_power_caps.csv"
TIMES = (CASTRO / "table4_pascal_time.csv", CASTRO / "table7_maxwell_time.csv")
ENERGIES = (CASTRO / "table5_pascal_energy.csv", CASTRO / "table8_maxwell_energy.csv")
OPERATIONS = CASTRO / "table1_operations.csv"
ITERATIONS = CASTRO / "table3_iterations.csv"


def rows(source):
    text = source.read_text() if isinstance(source, Path) else source
    return list(csv.DictReader(io.StringIO(text)))


def write(path, records):
    names = list(dict.fromkeys(name for record in records for name in record))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(records)
    return path
