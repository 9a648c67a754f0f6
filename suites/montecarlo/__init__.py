"""Laws judged by sampling."""
