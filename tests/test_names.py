def test_names_of_tests_tell_how_many_bytes_not_which(request):
    """Else two workers could find different names: what gzip compresses holds the second it was made in."""
    for item in request.session.items:
        for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
            assert not isinstance(value, bytes) or f"{len(value)} bytes" in item.nodeid
