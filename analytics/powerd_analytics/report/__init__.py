"""`joules report`: one page with findings, tables, traces and provenance that needs nothing else to be read."""

from powerd_analytics.report.page import ReportOptions, write_report

__all__ = ["ReportOptions", "write_report"]
