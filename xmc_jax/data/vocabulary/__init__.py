"""Vocabularies of libraries (SKOS, and Annif's TSV and CSV): their concepts, and the labels they become."""
