"""Operations of models by two conventions, counted on torch's ``meta`` device: shapes without memory."""

from powerd_analytics.operations.counts import OperationCount
from powerd_analytics.operations.torch_model import count_operations

__all__ = ["OperationCount", "count_operations"]
