"""What is in the folder of a run, and who may write there: records that are only appended, their index, the lock, the list."""
