"""The report of a load test: one HTML file that opens without a network, in light and dark, on paper and on a phone.

Pure: a document (what ``sweep`` or ``knee`` prints with ``--json``) goes in, the text of the file comes out.
"""

from instinct_fleet.report.html import render

__all__ = ["render"]
