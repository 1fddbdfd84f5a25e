"""What people see of a plan, its servers and its job: lines with a time, tables and sentences."""
