"""What a campaign's runs came to: cells, tables, findings, pictures and the page."""
