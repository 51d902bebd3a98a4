"""What a generated file says of itself for machines: its plan, which checks, updates and later steps read again."""
