"""Verifier files in the forms that three other frameworks document."""
