"""Tests by layer: unit, stores, integration, scenarios, packaging."""
