"""Measurements that anyone can repeat. Figures in README and docs come from here."""
