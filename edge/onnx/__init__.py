"""Personalised recommenders as ONNX files: written, checked, opened and measured."""
