"""What a recording writes while it runs: marks, frames of powerd, device times, ranks."""
