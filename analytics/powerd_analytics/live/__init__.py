"""`joules top`."""
