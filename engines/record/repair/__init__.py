"""What is wrong with the files of a workspace, and how to mend each of it.

Looking changes nothing; a file that is cut is always kept beside as it was. A cut journal costs
no call: replies are in the records, and a resumed run takes them from there. A cut record file
costs the replies behind the damage, where the step under way needs them.
"""
