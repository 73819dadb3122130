def main(): print("placeholder")
