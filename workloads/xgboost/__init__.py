"""Gradient-boosted trees with XGBoost."""
