"""What stepscope prints as JSON, a module per document: JSON is written from these structs and read
into them, and `scripts/make-docs` makes docs/*.schema.json of them.

A document is closed when it is written and open when it is read: keys of a newer version are passed
over, and fields that an older one lacked have a default. A field whose default is UNSET is left out
where there is nothing to say; every other one is always written.
"""
