"""The methods: a module or a folder a paper, with its settings, work and upload."""
