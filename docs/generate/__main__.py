"""Writer of generated files and reference pages: `python -m docs.generate`."""

from pathlib import Path

from . import write_pages
from .files import write_files

ROOT = Path(__file__).parents[2]
write_files(ROOT)
write_pages(ROOT)
