"""What people see of a plan, its servers and its job: lines with their time, tables, sentences."""
