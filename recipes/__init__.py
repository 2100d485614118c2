"""Runnable training jobs; `ctrlreward.configs` holds their configurations."""
