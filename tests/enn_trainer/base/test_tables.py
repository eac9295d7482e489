"""Tables of commands, where the output is no terminal."""

from rich.console import Console

from enn_trainer.base.tables import show_records, show_table


def printed(console: Console) -> list[str]:
    assert console.record
    return console.export_text().splitlines()


def test_tables_without_rows_print_nothing() -> None:
    console = Console(record=True)
    show_table(("a", "b"), [], console, heading=["", "title"])
    assert printed(console) == []
    show_table(("a", "b"), [("1", "2")], console, heading=["title"])
    assert printed(console) == ["title", "a  b", "1  2"]


def test_records_have_a_column_for_each_key() -> None:
    records = [
        {"name": "one", "is new": True, "step": 12, "return": 0.123456, "size": None},
        {"name": "two", "is new": False, "step": None, "return": 0.0, "size": None},
    ]
    console = Console(record=True)
    show_records(records, console, num_left=2, optional=("return", "size"))
    assert printed(console) == [
        "name  is new  step  return",
        "one   yes     12    0.1235",
        "two                 0",
    ]
    show_records(records, console, num_left=2)
    assert printed(console)[0].endswith("return  size")
