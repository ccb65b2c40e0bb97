"""Tests, package by package; `support` is what they share."""
