"""Operations of models by two conventions, counted on torch's ``meta`` device: shapes without memory."""

from powerd_analytics.operations.counts import (
    BYTES_PER_VALUE,
    CONVENTIONS,
    EXECUTED,
    PAPER,
    ExecutedCount,
    LayerCount,
    OperationCount,
    Work,
    read_count,
    to_document,
)
from powerd_analytics.operations.model import count_operations

__all__ = [
    "BYTES_PER_VALUE",
    "CONVENTIONS",
    "EXECUTED",
    "PAPER",
    "ExecutedCount",
    "LayerCount",
    "OperationCount",
    "Work",
    "count_operations",
    "read_count",
    "to_document",
]
