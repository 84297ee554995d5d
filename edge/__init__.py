"""Everything that lives on a device or between devices: clock, messages, links, data and learning."""
